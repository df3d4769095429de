# What the tests guard: it writes where it is until the gate opens.
mkdir "$JOB_DIR/inside" || echo overlap
echo "$LOCK_FENCE" >"$JOB_OUT/fence"
until [ -e "$JOB_DIR/gate" ]; do
	date +%s >"$JOB_OUT/tick"
	sleep 0.5
done
rmdir "$JOB_DIR/inside"
exit "$JOB_STATUS"
