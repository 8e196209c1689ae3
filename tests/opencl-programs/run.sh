#!/usr/bin/env bash
# Programs of other people on PoCL, natively and through Katydid over shared memory and TCP: the results have to be equal.
#
#   tests/opencl-programs/run.sh FOLDER [PROGRAM…]     or FOLDER build, which only builds what is built
#
# FOLDER is what `cargo xtask opencl-programs` makes, target/opencl-programs: Debian's packages below root/, hashcat beside what
# it reads, pages with ViennaCL's examples, a Python with PyOpenCL, and PyOpenCL's own tests. Named are clinfo, blas, vienna, pyopencl, openmm, clpeak,
# hashcat, a test of CLBlast's own (clblast_test_xdot), an example of ViennaCL's (vienna_fft), fine_grain, slice (1/16 of PyOpenCL's long tests, or what SLICE says), a file of PyOpenCL's tests (test_array) or a part of one (test_array.3of11). What differs from run to run (times, rates) and what is said not to go through is
# taken out before outputs are compared; FOLDER/out/NAME.WAY has them whole. In a pack for a GPU machine all is built (FOLDER/packed);
# there OPENCL is the folder of the loader, VENDORS that of the driver's name, DRIVER the server's driver of CUDA, WAYS the ways, BUDGET
# the seconds that a program may take, and TOGETHER=1 has a program run on all ways at once, or all parts of files, each on one way
# after the other: PoCL's cache would stand neither.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$here/../.." && pwd)
folder=$(cd "$1" && pwd)
shift
root=$folder/root
out=$folder/out
pocl=${OPENCL:-$(readlink -f "${CARGO_TARGET_DIR:-$tree/target}/opencl")}
katydid=${KATYDID:-${CARGO_TARGET_DIR:-$tree/target}/dist/bin/katydid}
loader=$pocl/usr/lib/x86_64-linux-gnu
python=$folder/python/bin/python
mkdir -p "$out"

if [ ! -e "$folder/packed" ]; then
    flags="-O2 -w -I $pocl/usr/include -I $root/usr/include -L $loader -L $root/usr/lib/x86_64-linux-gnu"
    gcc $flags "$here/blas.c" -o "$out/blas" -l:libclblast.so.1 -l:libOpenCL.so.1 || exit 1
    python3 "$here/examples.py" "$folder/vienna-pages" "$out" custom-context.cpp custom-kernels.cpp fft.cpp matrix-free.cpp || exit 1
    compiling=()
    for source in "$here/vienna.cpp" "$out"/vienna_*.cpp; do
        program=$out/$(basename "$source" .cpp)
        [ "$program" -nt "$source" ] && [ "$program" -nt "$0" ] && continue
        g++ $flags -O1 -D VIENNACL_WITH_OPENCL -D CL_TARGET_OPENCL_VERSION=120 "$source" -o "$program.new" -l:libOpenCL.so.1 &&
            mv "$program.new" "$program" &
        compiling+=($!)
    done
    for running in "${compiling[@]}"; do wait $running || exit 1; done
fi
[ "${1:-}" != build ] || exit 0

# Also what PoCL compiles and hashcat keeps, so that nothing depends on runs before.
scratch=$(mktemp -d)
# Some machines name further drivers there, and every test of PyOpenCL's runs once a platform.
unset OCL_ICD_FILENAMES KATYDID_OPENCL_DRIVERS

# What is run, and what is taken out of what it prints.
declare -A command=(
    [clinfo]="$root/usr/bin/clinfo --raw" [blas]="$out/blas" [vienna]="$out/vienna" [pyopencl]="$python $here/arrays.py" [openmm]="$python $here/molecules.py"
    [clpeak]="$root/usr/bin/clpeak --kernel-latency --global-bandwidth"
    [hashcat]="$folder/hashcat/hashcat -m 0 -a 3 --force --backend-ignore-cuda --potfile-disable --quiet -n 1 -u 8 -T 1 81dc9bdb52d04dc20036dbd8313ed055 ?d?d?d?d"
)
declare -A varies=([vienna_custom-context]='s/0x[0-9a-f]*//; s/ (through Katydid)//' [clpeak]='s/: .*//' [clinfo]='/VERSION\|EXTENSIONS\|SVM\|ICD\|SUFFIX\|COMMAND_BUFFER\|EXECUTION_CAPABILITIES\|SEMAPHORE\|EXTERNAL_MEMORY\|LUID/d; s/^\[[A-Z]*/[/; s/  */ /g')
# Of tests only their numbers count, and the names of those that fail. The one of fine-grained shared virtual memory, which devices have natively and where the program
# shares memory with its worker, is a program of its own; the one of PyOpenCL's own cache, which is off here, is left out.
tests='/ passed\|^[0-9]* failed\|^FAILED\|^ERROR/!d; s/ - .*//; s/ in .*//; s/, [0-9]* warnings\?//'
declare -A only=([fine_grain]="native shm")
most="not(fine_grain)and(not(xdg_cache))"
pytest() {
    local filter=$1 files=("${@:2}")
    files=("${files[@]/#/$folder/pyopencl-tests/}")
    echo "$python -m pytest -q -p no:cacheprovider -k $filter ${files[*]/%/.py}"
}
command[fine_grain]=$(pytest fine_grain test_wrapper)
# Those that take minutes in all, of which SLICE is a part.
command[slice]="$(pytest "$most" test_wrapper test_clmath test_clrandom test_algorithm test_array) -p sliced"
varies[fine_grain]=$tests varies[slice]=$tests
export LD_LIBRARY_PATH=$loader:$root/usr/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu/blas${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} POCL_CACHE_DIR=$scratch/cache OCL_ICD_VENDORS=${VENDORS:-$pocl/vendors} PYOPENCL_NO_CACHE=1
export PYTHONPATH=$here SLICE=${SLICE:-1/16}
socket=$scratch/server.sock
# PyOpenCL's kernels include files of its package, which workers in a sandbox may not read.
"$katydid" serve --driver "${DRIVER:-soft}" --allow-cpu-opencl --no-sandbox --listen "unix:$socket" --listen tcp://127.0.0.1:0 2>"$out/server.log" &
server=$!
trap 'kill $server; wait $server; rm -rf "$scratch"' EXIT
address() { grep -o 'tcp://127.0.0.1:[0-9]*' "$out/server.log" | head -1; }
until [ -S "$socket" ] && [ -n "$(address)" ]; do sleep 0.1; kill -0 $server || exit 1; done

# Microseconds since the machine started in which some process waited for a processor; 0 where the kernel does not count them.
stalled() { sed -n 's/^some .*total=//p' /proc/pressure/cpu 2>/dev/null || true; }

# Hundredths of a second of processor time that session $1, what is below it, and the server's workers have used, with their children.
used() {
    cat /proc/[0-9]*/stat 2>/dev/null | awk -v session="$1" -v server=$server '
        { pid = $1; sub(/^.*\) /, ""); parent[pid] = $2; is_ours[pid] = $4 == session; ticks[pid] = $12 + $13 + $14 + $15 }
        END {
            for (pid in parent) {
                for (p = pid; p in parent && p != server && p != session;) p = parent[p]
                if (p == server || p == session || is_ours[pid]) sum += ticks[pid]
            }
            print sum + 0
        }'
}

# A command that is ended when it stands still for so many seconds, of which those without a free processor count a quarter; work pays for
# twenty times as much waiting (tests/src/deadline.rs). With BUDGET it is ended after so many seconds, whatever it does.
limited() {
    local limit=$1 watcher status=0
    shift
    setsid -w "$@" &
    local child=$!
    watch_over $child "$limit" &
    watcher=$!
    wait $child || status=$?
    kill $watcher 2>/dev/null
    return $status
}

# Kills the session of a command whose limit is over. Times are in hundredths of a second.
watch_over() {
    local child=$1 limit=$(($2 * 100)) begun=$SECONDS still=0 before now ticks worked
    before=$(stalled) ticks=$(used "$child")
    while sleep 5; do
        now=$(stalled) worked=$(used "$child")
        still=$((still + 500 - (${now:-0} - ${before:-0}) * 3 / 40000))
        [ "$worked" -gt "$ticks" ] && still=$((still - 20 * (worked - ticks)))
        [ $still -lt 0 ] && still=0
        before=$now ticks=$worked
        if [ $still -gt $limit ] || [ $((SECONDS - begun)) -gt "${BUDGET:-$((1 << 30))}" ]; then
            kill -KILL -- "-$child"
            break
        fi
    done
}

# A program on one way, in a folder of its own: what it printed, how it ended and how long it took.
run_on() {
    local program=$1 way=$2 through=() started
    [ $way = shm ] && through=("$katydid" run --server "unix:$socket" --)
    [ $way = tcp ] && through=("$katydid" run --server "$(address)" --)
    local said=$out/$program.$way own=$scratch/$program.$way line=$3
    mkdir -p "$own"
    started=$(date +%s%N)
    (cd "$own" && limited "${LIMIT:-300}" "${through[@]}" $line) >"$said" 2>"$said.err" </dev/null
    echo "$? $((($(date +%s%N) - started) / 1000000))" >"$said.ended"
}

# A part of a file of PyOpenCL's tests, such as test_array.3of11.
part='^(.+)\.([0-9]+)of([0-9]+)$'

# What runs a program that has an entry above, or is a test of CLBlast's, an example of ViennaCL's, a part of a file or a file.
line_of() {
    local program=$1
    if [ "${command[$program]:-}" ]; then echo "${command[$program]}"
    elif [[ $program = clblast_test_* ]]; then echo "$root/usr/bin/$program"
    elif [[ $program = vienna_* ]]; then echo "$out/$program"
    elif [[ $program =~ $part ]]; then echo "env SLICE=${BASH_REMATCH[2]}/${BASH_REMATCH[3]} $(pytest "$most" ${BASH_REMATCH[1]}) -p sliced"
    else pytest "$most" $program; fi
}

# The ways that a program goes.
ways_of() {
    local way
    for way in ${WAYS:-native shm tcp}; do
        [[ " ${only[$1]:-$way} " == *" $way "* ]] && echo $way
    done
}

# A program on its ways.
run_ways() {
    local program=$1 line way running=()
    line=$(line_of $program)
    for way in $(ways_of $program); do
        run_on $program $way "$line" &
        running+=($!)
        # Each run of hashcat, or of a part, reads what another has compiled.
        [ "${TOGETHER:-}" ] && [ $program != hashcat ] && [[ ! $program =~ $part ]] || wait ${running[-1]}
    done
    [ ${#running[@]} = 0 ] || wait "${running[@]}"
}

failed=0
# What a program said on each way, beside what it said natively. Times are of whichever way compiles first, or of all ways together.
judge() {
    local program=$1 way said code took native=0 verdict left_out=$tests
    # What is no test of PyOpenCL's is compared whole, but for what varies.
    [[ $(line_of $program) == *pytest* ]] || left_out=
    left_out=${varies[$program]:-$left_out}
    read -r native took <"$out/$program.native.ended"
    for way in $(ways_of $program); do
        said=$out/$program.$way
        read -r code took <"$said.ended"
        sed "$left_out" "$said" >"$said.same"
        verdict=equal
        # A program that prints nothing, or does not end (124), has shown nothing.
        [ $code = $native ] && [ $code != 124 ] && [ -s "$said.same" ] && cmp -s "$out/$program.native.same" "$said.same" || verdict=DIFFERS
        # What fails natively on PoCL fails here; other drivers have faults of their own.
        [ $verdict = equal ] && { [ $code = 0 ] || [ -e "$folder/packed" ]; } || failed=1
        [ $verdict = equal ] || { tail -n 20 "$said.err"; diff "$out/$program.native.same" "$said.same" | head -n 20; }
        echo "$program $way: status $code, $verdict, $took ms, $(tail -n 1 "$said.same")"
    done
}

parts=()
for program in ${@:-clinfo blas clblast_test_xdot vienna vienna_fft pyopencl openmm clpeak hashcat}; do
    if [ "${TOGETHER:-}" ] && [[ $program =~ $part ]]; then
        # What it says comes whole, as soon as it has ended.
        { run_ways $program; said=$(judge $program; exit $failed); code=$?; echo "$said"; exit $code; } &
        parts+=($!)
    else
        run_ways $program
        judge $program
    fi
done
for running in "${parts[@]}"; do wait $running || failed=1; done
exit $failed
