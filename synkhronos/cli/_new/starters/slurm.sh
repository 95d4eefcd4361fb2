#!/bin/bash
# A job for Slurm: sbatch slurm.sh. It trains as config.toml says, with a member for each core, and
# starts again from its latest checkpoint until the run has ended. With more nodes, `synk run` starts a
# process on each, and the members of all nodes train together.
#SBATCH --job-name=synk
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

# Slurm warns this script 120 seconds before the end, and the script warns the run. The run then
# writes a checkpoint and ends with exit code 75: run it again.
trap 'kill -TERM "$run"' TERM
synk run -m synkhronos train config.toml --resume &
run=$!
wait "$run"
code=$?
if [ "$code" -gt 128 ] && kill -0 "$run" 2>/dev/null; then # the signal has ended `wait`
    wait "$run"
    code=$?
fi
if [ "$code" -eq 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
