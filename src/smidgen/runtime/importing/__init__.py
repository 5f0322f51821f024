"""What is imported when: nobody waits for torch who does not need it."""
