"""Background tasks: durable jobs that look something up beside a chat, and whose result comes there once."""
