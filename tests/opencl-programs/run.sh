#!/usr/bin/env bash
# Programs of other people on PoCL, natively and through Katydid over shared memory and TCP: the results have to be equal.
#
#   tests/opencl-programs/run.sh FOLDER [PROGRAM…]     or FOLDER build, which only builds what is built
#
# FOLDER is what `cargo xtask opencl-programs` makes, target/opencl-programs: Debian's packages below root/, hashcat beside what
# it reads, a Python with PyOpenCL, and PyOpenCL's own tests. Named are clinfo, blas, vienna, pyopencl, openmm, clpeak, hashcat,
# or a file of PyOpenCL's tests (test_array). What differs from run to run (times, rates) and what is said not to go through is
# taken out before outputs are compared; FOLDER/out/NAME.WAY has them whole. In a pack for a GPU machine all is built (FOLDER/packed);
# there OPENCL is the folder of the loader and of the driver's name, DRIVER the server's driver of CUDA, WAYS the ways, LIMIT the
# seconds that a program may take.
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
    g++ $flags "$here/vienna.cpp" -o "$out/vienna" -l:libOpenCL.so.1 || exit 1
fi
[ "${1:-}" != build ] || exit 0

# Also what PoCL compiles, so that nothing depends on runs before.
scratch=$(mktemp -d)
# Some machines name further drivers there, and every test of PyOpenCL's runs once a platform.
unset OCL_ICD_FILENAMES KATYDID_OPENCL_DRIVERS

# What is run, and what is taken out of what it prints.
declare -A command=(
    [clinfo]="$root/usr/bin/clinfo --raw" [blas]="$out/blas" [vienna]="$out/vienna" [pyopencl]="$python $here/arrays.py" [openmm]="$python $here/molecules.py"
    [clpeak]="$root/usr/bin/clpeak --kernel-latency --global-bandwidth"
    [hashcat]="$folder/hashcat/hashcat -m 0 -a 3 --force --potfile-disable --quiet -n 1 -u 8 -T 1 81dc9bdb52d04dc20036dbd8313ed055 ?d?d?d?d"
)
declare -A varies=([clpeak]='s/: .*//' [clinfo]='/VERSION\|EXTENSIONS\|SVM\|ICD\|SUFFIX\|COMMAND_BUFFER\|EXECUTION_CAPABILITIES/d; s/^\[[A-Z]*/[/; s/  */ /g')
# Of tests only their numbers count. Two are left out: the one of finer grains of shared virtual memory, which do not go through,
# and the one of PyOpenCL's own cache, which is off here.
tests='/ passed/!d; s/ in .*//; s/, [0-9]* warnings\?//'
export LD_LIBRARY_PATH=$loader:$root/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} POCL_CACHE_DIR=$scratch/cache OCL_ICD_VENDORS=$pocl/vendors PYOPENCL_NO_CACHE=1
socket=$scratch/server.sock
"$katydid" serve --driver "${DRIVER:-soft}" --listen "unix:$socket" --listen tcp://127.0.0.1:0 2>"$out/server.log" &
server=$!
trap 'kill $server; wait $server; rm -rf "$scratch"' EXIT
address() { grep -o 'tcp://127.0.0.1:[0-9]*' "$out/server.log" | head -1; }
until [ -S "$socket" ] && [ -n "$(address)" ]; do sleep 0.1; kill -0 $server || exit 1; done

failed=0
# Times are of whichever way compiles first.
for program in ${@:-clinfo blas vienna pyopencl openmm clpeak hashcat}; do
    line=${command[$program]:-"$python -m pytest -q -p no:cacheprovider -k not(fine_grain)and(not(xdg_cache)) $folder/pyopencl-tests/$program.py"}
    left_out=${varies[$program]:-}
    [ "${command[$program]:-}" ] || left_out=$tests
    for way in ${WAYS:-native shm tcp}; do
        through=()
        [ $way = shm ] && through=("$katydid" run --server "unix:$socket" --)
        [ $way = tcp ] && through=("$katydid" run --server "$(address)" --)
        started=$(date +%s%N)
        (cd "$scratch" && timeout "${LIMIT:-900}" "${through[@]}" $line) >"$out/$program.$way" 2>"$out/$program.$way.err" </dev/null
        code=$?
        sed "$left_out" "$out/$program.$way" >"$out/$program.$way.same"
        verdict=equal
        [ $code = 0 ] && cmp -s "$out/$program.native.same" "$out/$program.$way.same" || { verdict=DIFFERS; failed=1; }
        [ $verdict = equal ] || { tail -n 20 "$out/$program.$way.err"; diff "$out/$program.native.same" "$out/$program.$way.same" | head -n 20; }
        echo "$program $way: status $code, $verdict, $((($(date +%s%N) - started) / 1000000)) ms, $(tail -n 1 "$out/$program.$way.same")"
    done
done
exit $failed
