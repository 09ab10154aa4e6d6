"""A user's package that is called as one of ours."""

WORDS = ["collected", "by", "the", "user"]
