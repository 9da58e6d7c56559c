"""What changes do to the lifetimes of a capture's allocations, one file per kind of change."""
