"""Fake OpenAI, Twilio and Secrets Manager services."""
