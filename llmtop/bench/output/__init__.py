"""Results of `llmtop bench` as text, Markdown and JUnit XML."""
