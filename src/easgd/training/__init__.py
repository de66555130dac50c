"""A training run from one record of settings: built, run on any engine, measured, saved, resumed."""
