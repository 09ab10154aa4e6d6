# Sourced by the scripts beside it: tries within a limit.
# Wants: limit (seconds). Gives: left, try.
deadline=$((SECONDS + limit))
left() { local rest=$((deadline - SECONDS)); [ "$rest" -gt 1 ] && echo "$rest" || echo 1; }
# Networks fail now and then: three tries, none beyond the time that is left.
try() {
  local attempt
  for attempt in 1 2 3; do
    timeout -k 5 "$(left)" "$@" && return 0
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep "$attempt"
  done
  return 1
}
