"""What several changes need of a graph; each raises ChangeError with the reason to refuse one."""
