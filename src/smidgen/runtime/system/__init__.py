"""What Linux, macOS and Windows each do in their own way, and what this machine has."""
