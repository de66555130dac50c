"""Recipes: one per figure and table."""
