"""The page of a ramping study."""
