"""Stores for executions that live in memory."""
