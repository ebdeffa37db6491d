#!/usr/bin/env bash
# The attacks of `make night`, for half a minute.
status=0
for part in 'kills 20' 'power 8'; do
  read -r name seconds <<<"$part"
  bash "$(dirname "$0")/../night/$name.sh" "$seconds" || status=1
done
exit $status
