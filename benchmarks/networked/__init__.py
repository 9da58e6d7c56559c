"""Distributed training on shaped links: reference implementations, predicted and measured."""
