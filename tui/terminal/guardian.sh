#!/bin/sh
# Waits for the end of the screen, and puts the terminal back if the screen could not (tui/terminal/guardian.py).
#
# stdin: a socket from the screen. It says "end" when the terminal has been given back; a traceback, which blocks
# until it is read here, when the screen dies of a fault; nothing, when it was killed. After a fault it gets one byte.
# stdout: the terminal that it reads from, stderr: that it writes to.
# $1: how the screen sets the terminal, $2: how it was before, $3: what to send to it, $4: the log, or nothing.

IFS= read -r said
[ "$said" = end ] && exit 0

log=$4
sentence=
if [ -n "$said" ]; then
    # The dying process has threads that still draw: they stop at this byte (GuardedOutput).
    trap '' PIPE
    printf . >&0 2>&-
    umask 077
    [ -n "$log" ] && true 2>&- >>"$log" || log=
    sentence="llmtop: the screen died of a fault (${said#Fatal Python error: })"
    [ -z "$log" ] || sentence="$sentence; where it was: $log"
fi

give_back() {
    # The settings, unless a shell that noticed the end earlier has already made them its own. Not after what is
    # still to be written: a terminal that does not read would keep them waiting.
    if [ "$(stty -g <&3 2>&-)" = "$1" ]; then
        stty -drain "$2" <&3 2>&- || stty "$2" <&3
    fi
    printf '%b' "$3" >&2
    [ -z "$sentence" ] || printf '%s\n' "$sentence" >&2
}
exec 3<&1
if [ ! -c /dev/null ]; then
    # Shells open it for what they start beside them.
    give_back "$@"
    [ -z "$said" ] || [ -z "$log" ] || { printf '%s\n' "$said"; cat 2>&-; } >>"$log"
    exit
fi
give_back "$@" </dev/null &
giving=$!

if [ -n "$said" ]; then
    # The screen dies as soon as this is read, so that what the shell says comes after what is said here. If the
    # terminal does not take it now, it may die all the same; the terminal gets the rest when it reads again.
    trap : USR1
    (
        sleep 2 &
        trap 'kill $!; exit' TERM
        wait $!
        kill -USR1 $$
    ) </dev/null >/dev/null 2>&1 3<&1 &
    limit=$!
    wait $giving
    kill $limit 2>/dev/null
    { printf '%s\n' "$said"; cat 2>&-; } >>"${log:-/dev/null}"
fi
