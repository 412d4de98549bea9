#!/bin/bash
# SPDX-License-Identifier: Apache-2.0

# A hybrid training as a heterogeneous job: 2 hosts of parameter servers, 1 of embedding workers, 2 of dense workers.
# Usage: sbatch slurm.sh train.py, in a folder that all hosts share. The servers end with the dense workers.
#SBATCH --job-name=ctr --time=24:00:00
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=16 --mem=200G
#SBATCH hetjob
#SBATCH --nodes=1 --ntasks-per-node=1 --cpus-per-task=16 --mem=32G
#SBATCH hetjob
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=32 --mem=100G
set -euo pipefail
export SCRIPT=$1 CONFIG=$PWD/ctr-$SLURM_JOB_ID.toml HEADWAY_GROUP_SECRET_FILE=$PWD/ctr-$SLURM_JOB_ID.secret

# Addresses of a group of hosts, as a list of TOML.
addresses() {
  local hosts
  mapfile -t hosts < <(scontrol show hostnames "$1")
  printf '"%s"\n' "${hosts[@]/%/:$2}" | paste -sd ,
}

(umask 077 && head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$HEADWAY_GROUP_SECRET_FILE")
cat > "$CONFIG" <<EOF
mode = "hybrid"
staleness = 4
[job]
name = "ctr"
[servers]
addresses = [$(addresses "$SLURM_JOB_NODELIST_HET_GROUP_0" 7000)]
[workers]
addresses = [$(addresses "$SLURM_JOB_NODELIST_HET_GROUP_1" 7100)]
EOF
DENSE_HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_2" | head -n 1)
export DENSE_HOST

trap 'kill $(jobs -p) 2>/dev/null; wait; rm -f "$HEADWAY_GROUP_SECRET_FILE"' EXIT
srun --het-group=0 bash -c 'exec headway hybrid ps "$CONFIG" --index "$SLURM_PROCID" --listen 0.0.0.0:7000' &
srun --het-group=1 bash -c 'exec headway hybrid worker "$CONFIG" --index "$SLURM_PROCID" --listen 0.0.0.0:7100' &
srun --het-group=2 bash -c 'exec torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 1 --node-rank "$SLURM_PROCID" \
  --master-addr "$DENSE_HOST" --master-port 29500 "$SCRIPT" "$CONFIG"' &
dense=$!
wait -n -p ended  # The first role that ends ends the job.
[ "$ended" = "$dense" ]
