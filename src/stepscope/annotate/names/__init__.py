"""What names say: ranges of a training loop, named scopes, and the marks of autograd."""
