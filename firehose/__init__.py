"""The AT Protocol, without Ray: bytes off a firehose come in, verified events and signed commits go out."""
