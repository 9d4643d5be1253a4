#!/bin/sh
# A wrapper that does not exec: the plugin is its child, and so is something that would live on for ever.
# (The shell gives /dev/null to what it starts with &, so stdin takes a detour.)
exec 3<&0
"$HOSTILE_EXE" <&3 3<&- &
plugin=$!
sleep 1000 </dev/null 3<&- &
echo "bystander $!" >&2
wait $plugin
