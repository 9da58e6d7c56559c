"""What people look at: the terminal, the page, the editor."""
