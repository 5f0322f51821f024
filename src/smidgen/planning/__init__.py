"""What a posterior would cost, said before the work."""
