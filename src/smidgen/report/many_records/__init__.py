"""The page of many records: one study."""
