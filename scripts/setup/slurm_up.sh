#!/usr/bin/env bash
# slurm_up.sh - a real but temporary Slurm cluster on one machine, for tests and CI.
#
#   slurm_up.sh install          apt-get the four Debian packages (needs root; ACCT=1: slurmdbd and MariaDB too)
#   slurm_up.sh up               start it (idempotent: a second "up" changes nothing)
#   slurm_up.sh env              print the exports a client shell needs:  eval "$(slurm_up.sh env)"
#   slurm_up.sh status           sinfo + squeue
#   slurm_up.sh down             stop every daemon that this script started, by pid
#
# No systemd, no cgroups, no GPU, no database, no port outside 127.0.0.1.
# One munged, one slurmctld and $NODES slurmds (virtual nodes n1..nN), all below $SLURM_TEST_DIR.
# Runs as root or as an ordinary user (then SlurmUser/SlurmdUser are that user).
#
# Knobs: SLURM_TEST_DIR (default /tmp/slurm-test.$UID), NODES=2, CPUS_PER_NODE=1,
#        GPUS_PER_NODE=1 (0..4 pretend GPUs: Slurm hands them out exclusively and sets
#        CUDA_VISIBLE_DEVICES, but they do not exist), PORT=16817,
#        ACCT=0 (1: a private MariaDB and slurmdbd, so that sacct answers; root only).
set -euo pipefail

DIR=${SLURM_TEST_DIR:-/tmp/slurm-test.$(id -u)}
NODES=${NODES:-2}
CPUS_PER_NODE=${CPUS_PER_NODE:-1}
GPUS_PER_NODE=${GPUS_PER_NODE:-1}
PORT=${PORT:-16817}                     # slurmctld; slurmd k listens on PORT+k; slurmdbd PORT+80, MariaDB PORT+81
ACCT=${ACCT:-0}
USER_NAME=$(id -un)
PATH=$PATH:/usr/sbin:/sbin

alive() { [[ -s $1 ]] && kill -0 "$(<"$1")" 2>/dev/null; }

wait_for() {                            # wait_for SECONDS COMMAND...
    local deadline=$((SECONDS + $1)); shift
    until "$@" >/dev/null 2>&1; do
        (( SECONDS < deadline )) || { echo "slurm_up: gave up waiting for: $*" >&2; return 1; }
        sleep 0.1
    done
}

install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    local more=(); (( ACCT )) && more=(slurmdbd mariadb-server)
    apt-get install -q -y --no-install-recommends munge slurmctld slurmd slurm-client "${more[@]}"
}

write_config() {
    mkdir -p "$DIR"/{etc,munge,state,spool,log,run}
    chmod 755 "$DIR"; chmod 700 "$DIR/munge" "$DIR/state"
    [[ -s $DIR/munge/munge.key ]] || (umask 077; head -c 1024 /dev/urandom >"$DIR/munge/munge.key")

    local host mem gres_types="" node_gres="" k g
    host=$(hostname -s)
    mem=$(awk '/MemTotal/ {print int($2/1024*0.9)}' /proc/meminfo)
    : >"$DIR/etc/gres.conf"
    if (( GPUS_PER_NODE > 0 )); then
        gres_types="GresTypes=gpu"; node_gres="Gres=gpu:$GPUS_PER_NODE"
        local devices=(/dev/null /dev/zero /dev/full /dev/random)   # slurmd wants real device files
        for ((k = 1; k <= NODES; k++)); do
            for ((g = 0; g < GPUS_PER_NODE; g++)); do
                echo "NodeName=n$k Name=gpu File=${devices[g]}" >>"$DIR/etc/gres.conf"
            done
        done
    fi
    cat >"$DIR/etc/slurm.conf" <<CONF
ClusterName=perfctl-test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$PORT
SlurmUser=$USER_NAME
SlurmdUser=$USER_NAME
AuthType=auth/munge
AuthInfo=socket=$DIR/run/munge.socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/spool/%n
SlurmctldPidFile=$DIR/run/slurmctld.pid
SlurmdPidFile=$DIR/run/slurmd.%n.pid
SlurmctldLogFile=$DIR/log/slurmctld.log
SlurmdLogFile=$DIR/log/slurmd.%n.log
PluginDir=/usr/lib/x86_64-linux-gnu/slurm-wlm
# no cgroups, no task binding, no accounting database
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$DIR/log/jobcomp.txt
MpiDefault=none
ReturnToService=2
# for a small test cluster: schedule at once, remember jobs for long, kill fast
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,sched_min_interval=0,batch_sched_delay=0,bf_interval=2
MinJobAge=600
KillWait=3
InactiveLimit=0
SlurmdTimeout=60
SlurmctldTimeout=60
MaxArraySize=1001
$gres_types
CONF
    for ((k = 1; k <= NODES; k++)); do
        echo "NodeName=n$k NodeHostname=$host NodeAddr=127.0.0.1 Port=$((PORT + k)) CPUs=$CPUS_PER_NODE" \
             "RealMemory=$((mem / NODES)) $node_gres State=UNKNOWN" >>"$DIR/etc/slurm.conf"
    done
    echo "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP" >>"$DIR/etc/slurm.conf"
    # the configuration may have more CPUs than the machine: slurmd must not complain
    echo "SlurmdParameters=config_overrides" >>"$DIR/etc/slurm.conf"
    echo "CgroupAutomount=no" >"$DIR/etc/cgroup.conf"

    (( ACCT )) || return 0
    sed -i "s#^AccountingStorageType=.*#AccountingStorageType=accounting_storage/slurmdbd#" "$DIR/etc/slurm.conf"
    cat >>"$DIR/etc/slurm.conf" <<CONF
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((PORT + 80))
AccountingStoragePass=$DIR/run/munge.socket
CONF
    (umask 077; cat >"$DIR/etc/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$DIR/run/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$((PORT + 80))
SlurmUser=$USER_NAME
LogFile=$DIR/log/slurmdbd.log
PidFile=$DIR/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$((PORT + 81))
StorageUser=slurm
StoragePass=test
StorageLoc=slurm_acct_db
PluginDir=/usr/lib/x86_64-linux-gnu/slurm-wlm
CONF
    )
}

start_accounting() {
    local sock=$DIR/mysql/s.sock fresh=0 sql
    if ! alive "$DIR/run/mariadbd.pid"; then
        if [[ ! -d $DIR/mysql/mysql ]]; then
            fresh=1; mkdir -p "$DIR/mysql"; chown mysql "$DIR/mysql"
            mariadb-install-db --no-defaults --user=mysql --datadir="$DIR/mysql" \
                --auth-root-authentication-method=socket >"$DIR/log/mariadb-install.log" 2>&1
        fi
        mariadbd --no-defaults --user=mysql --datadir="$DIR/mysql" --socket="$sock" --bind-address=127.0.0.1 \
            --port=$((PORT + 81)) --innodb-lock-wait-timeout=900 >"$DIR/log/mariadbd.log" 2>&1 &
        echo $! >"$DIR/run/mariadbd.pid"
        wait_for 30 mariadb -S "$sock" -e 'select 1'
        if (( fresh )); then
            sql="create database slurm_acct_db;"
            for h in localhost 127.0.0.1; do
                sql+="create user slurm@$h identified by 'test'; grant all on slurm_acct_db.* to slurm@$h;"
            done
            mariadb -S "$sock" -e "$sql"
        fi
    fi
    if ! alive "$DIR/run/slurmdbd.pid"; then
        slurmdbd
        wait_for 30 sacctmgr -n list cluster
        sacctmgr -i -Q add cluster perfctl-test >/dev/null 2>&1 || true
    fi
}

up() {
    for tool in munged slurmctld slurmd sbatch; do
        command -v $tool >/dev/null || { echo "slurm_up: $tool is missing; run '$0 install' first" >&2; exit 127; }
    done
    export SLURM_CONF=$DIR/etc/slurm.conf
    alive "$DIR/run/slurmctld.pid" || write_config

    if ! alive "$DIR/run/munged.pid"; then
        rm -f "$DIR/run/munge.socket" "$DIR/run/munged.pid"
        # --force: the socket lies below /tmp, owned by whoever runs the tests
        munged --force --socket="$DIR/run/munge.socket" --key-file="$DIR/munge/munge.key" \
               --pid-file="$DIR/run/munged.pid" --log-file="$DIR/munge/munged.log" \
               --seed-file="$DIR/munge/munged.seed" --origin=127.0.0.1 2>>"$DIR/munge/start.log"
        wait_for 10 test -S "$DIR/run/munge.socket"
    fi
    if (( ACCT )); then start_accounting; fi
    alive "$DIR/run/slurmctld.pid" || slurmctld -f "$SLURM_CONF" 2>>"$DIR/log/start.log"
    wait_for 20 scontrol ping
    for ((k = 1; k <= NODES; k++)); do
        alive "$DIR/run/slurmd.n$k.pid" || slurmd -f "$SLURM_CONF" -N "n$k" 2>>"$DIR/log/start.log"
    done
    wait_for 30 all_idle
    echo "slurm_up: $NODES node(s) up; export SLURM_CONF=$SLURM_CONF" >&2
}

all_idle() { [[ $(sinfo -h -N -t idle,mixed,allocated -o %N | sort -u | wc -l) -ge $NODES ]]; }

stop() {                                # stop PIDFILE...: all at once, wait for all, then insist
    local f pid pids=()
    for f in "$@"; do
        alive "$f" && { pid=$(<"$f"); pids+=("$pid"); kill "$pid"; }
    done
    for _ in $(seq 100); do
        for pid in "${pids[@]}"; do kill -0 "$pid" 2>/dev/null && { sleep 0.1; continue 2; }; done
        break
    done
    for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
    rm -f "$@"
}

down() {
    export SLURM_CONF=$DIR/etc/slurm.conf
    [[ -d $DIR/run ]] || return 0
    alive "$DIR/run/slurmctld.pid" && scancel -u "$USER_NAME" 2>/dev/null && sleep 1
    shopt -s nullglob
    stop "$DIR"/run/slurmd.*.pid "$DIR/run/slurmctld.pid"
    stop "$DIR/run/slurmdbd.pid"
    stop "$DIR/run/mariadbd.pid" "$DIR/run/munged.pid"
    echo "slurm_up: down; files are still in $DIR" >&2
}

case ${1:-} in
    install) install_packages ;;
    up)      up ;;
    down)    down ;;
    env)     echo "export SLURM_CONF=$DIR/etc/slurm.conf" ;;
    status)  export SLURM_CONF=$DIR/etc/slurm.conf; sinfo -N -l; squeue -a ;;
    *)       sed -n '2,19s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
