"""Runnable services that show the whole."""
