# Sourced by the scripts beside it: tries within a limit.
# Wants: limit (seconds), here (the checkout). Gives: left, try, pip_install, current, mark_current.
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

constraints=$here/constraints.txt
# pip_install PYTHON ARGUMENT...: pip install, in the versions of constraints.txt.
pip_install() { try "$1" -m pip install -q --disable-pip-version-check -c "$constraints" "${@:2}"; }
# Whether the folder $1 was installed from the constraints.txt of now.
current() { cmp -s "$constraints" "$1/constraints.txt"; }
mark_current() { cp "$constraints" "$1/constraints.txt"; }
