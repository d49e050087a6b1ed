"""The lease engine: everything here is standard library and pydantic."""
