"""Choosing precision and temperature."""
