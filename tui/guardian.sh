#!/bin/sh
# Waits for the end of the screen, and puts the terminal back if the screen could not (tui/guardian.py).
#
# stdin: a socket from the screen. It says "end" when the terminal has been given back; a traceback, which blocks
# until it is read here, when the screen dies of a fault; nothing, when it was killed.
# stdout: the terminal that it reads from, stderr: that it writes to.
# $1: how the screen sets the terminal, $2: how it was before, $3: what to send to it, $4: the log, or nothing.

IFS= read -r said
[ "$said" = end ] && exit 0

# A terminal that does not read must hold up nothing: the dying screen waits until this process has read or is gone.
(
    sleep 2 &
    trap 'kill $!; exit' TERM
    wait $!
    kill -9 $$
) </dev/null >/dev/null 2>&1 &
limit=$!

# The settings, unless a shell that noticed the end earlier has already made them its own.
exec 3<&1
( [ "$(stty -g <&3 2>/dev/null)" != "$1" ] || stty "$2" <&3 ) &
settings=$!
printf '%b' "$3" >&2
wait $settings
if [ -n "$said" ]; then
    umask 077
    log=$4
    [ -n "$log" ] && true 2>/dev/null >>"$log" || log=/dev/null
    where=
    [ "$log" = /dev/null ] || where="; where it was: $log"
    printf 'llmtop: the screen died of a fault (%s)%s\n' "${said#Fatal Python error: }" "$where" >&2
    # The screen ends as soon as this is read, so that what the shell says comes after what is said here.
    { printf '%s\n' "$said"; cat; } >>"$log"
fi
kill $limit 2>/dev/null
exit 0
