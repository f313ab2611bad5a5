"""Journeys through the console: a real browser against a real service."""
