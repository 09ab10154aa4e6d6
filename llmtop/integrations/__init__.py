"""One module for each training library: import only the one whose library is there.

Each puts on the same hooks as `llmtop run` (llmtop/instrument/auto) and adds what the library alone knows: where a
step ends, how many there will be, the metrics that it logs. Used together with `llmtop run` nothing counts twice.
"""
