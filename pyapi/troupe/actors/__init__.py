"""Actors, tasks, refs and groups of actors; what users need of it is in ``troupe`` itself."""
