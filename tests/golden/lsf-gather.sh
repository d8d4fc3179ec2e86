#!/bin/bash -l
# perfctl 1.2.3: what the tasks of train.py left, into one store and one page. For LSF.
# It runs after any outcome and names what is missing. By hand:
#   bsub -w 'ended(NUMBER)' < gather.sbatch
#BSUB -J perfctl-gather
#BSUB -L /bin/bash
#BSUB -o /dev/null
#BSUB -n 1
#BSUB -W 30
#BSUB -q gpuq
#BSUB -P ab1234

cd /home/ada/study || exit 1
exec >>/home/ada/study/perfctl-runs/slurm-train.py-9c0d1e2f/gather.log 2>&1
module purge || exit 1  # what the shell that submitted this had loaded
module load apptainer || exit 1
container=$(command -v apptainer || command -v singularity) || { echo "neither apptainer nor singularity is here" >&2; exit 1; }
# The image gets a clean environment and, of this one, what is named here. For another variable of your own, here or
# before you submit:  export APPTAINERENV_NAME=value SINGULARITYENV_NAME=value
pass() { [[ -v APPTAINERENV_$1 || -v SINGULARITYENV_$1 ]] || export "APPTAINERENV_$1=$2" "SINGULARITYENV_$1=$2"; }
for name in $(compgen -e); do
    case $name in
        CUDA_VISIBLE_DEVICES | CUDA_DEVICE_* | CUDA_LAUNCH_BLOCKING | CUDA_MODULE_LOADING | CUBLAS_* | \
            CUDNN_* | NVIDIA_* | NCCL_* | TORCH_* | PYTORCH_* | OMP_* | MKL_* | OPENBLAS_* | MASTER_* | RANK | \
            LOCAL_RANK | WORLD_SIZE | HF_HOME | HF_*_OFFLINE | HF_DATASETS_CACHE | XDG_CACHE_HOME | SLURM_JOB_* \
            | SLURM_ARRAY_* | SLURM_CPUS_* | SLURM_GPUS* | SLURM_N* | SLURM_PROCID | SLURM_LOCALID | \
            PBS_ARRAY_INDEX | PBS_JOBID | LSB_JOBID | LSB_JOBINDEX | SCRATCH | LSCRATCH | LOCAL_SCRATCH | \
            SLURM_TMPDIR | TMPDIR | PERFCTL_*) pass "$name" "${!name}" ;;
    esac
done
pass PYTHONNOUSERSITE 1  # no packages of the home folder
binds=(--bind "${TMPDIR:-/tmp}")
for place in "${SCRATCH:-}" "${LSCRATCH:-}" "${LOCAL_SCRATCH:-}" "${SLURM_TMPDIR:-}"; do
    [[ -d $place && $place != / ]] && binds+=(--bind "$place")
done
prefix=(
    "$container" exec --cleanenv
    "${binds[@]}"
    --bind /home/ada/study
    --bind /data:/data:ro
    --pwd /home/ada/study
    /images/perfctl.sif
)
exec "${prefix[@]}" python3 -m perfctl slurm gather /home/ada/study/perfctl-runs/slurm-train.py-9c0d1e2f --store perfctl.db --page perfctl-report.html
