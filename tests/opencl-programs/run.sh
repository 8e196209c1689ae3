#!/usr/bin/env bash
# Programs of other people on PoCL, natively and through Katydid over shared memory and TCP: the results have to be equal.
#
#   tests/opencl-programs/run.sh FOLDER [PROGRAM…]
#
# FOLDER takes Debian's packages and the outputs. It takes root, apt-get, a C++ compiler, and what `cargo xtask setup` and
# `cargo xtask dist` make. The packages are seen as installed in a mount namespace of the script's own only. What differs from
# run to run (times, rates) and what is said not to go through is taken out before outputs are compared; `FOLDER/NAME.WAY` has them whole.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$here/../.." && pwd)
work=$(mkdir -p "$1" && cd "$1" && pwd)
shift
packages="clinfo clpeak clblast-utils libclblast1 libclblast-dev libviennacl-dev hashcat hashcat-data libminizip1 libxxhash0
    python3-pyopencl python3-pytools python3-numpy python3-platformdirs python3-typing-extensions
    python3-mako python3-markupsafe python3-appdirs python3-pkg-resources python3-six libblas3 liblapack3 libgfortran5 libquadmath0"
root=$work/root
pocl=$(readlink -f "${CARGO_TARGET_DIR:-$tree/target}/opencl")
katydid=${KATYDID:-${CARGO_TARGET_DIR:-$tree/target}/dist/bin/katydid}
libraries=$pocl/usr/lib/x86_64-linux-gnu

if [ ! -e "$root" ]; then
    mkdir -p "$work/debs" && (cd "$work/debs" && apt-get download -qq $packages) || exit 1
    for package in "$work"/debs/*.deb; do dpkg-deb -x "$package" "$root.new"; done
    mv "$root.new" "$root"
fi
if [ -z "${IN_NAMESPACE:-}" ]; then
    IN_NAMESPACE=1 exec unshare --mount "$0" "$work" "$@"
fi
mount -t overlay none -o "lowerdir=$root/usr:/usr" /usr || exit 1

flags="-O2 -w -I $pocl/usr/include -L $libraries"
gcc $flags "$here/blas.c" -o "$work/blas" /usr/lib/x86_64-linux-gnu/libclblast.so.1 -l:libOpenCL.so.1 || exit 1
g++ $flags "$here/vienna.cpp" -o "$work/vienna" -l:libOpenCL.so.1 || exit 1

# What is run, and what is taken out of what it prints.
declare -A command=(
    [clinfo]="clinfo --raw" [blas]="$work/blas" [vienna]="$work/vienna" [pyopencl]="python3.11 $here/arrays.py"
    [clpeak]="clpeak --kernel-latency --global-bandwidth"
    [hashcat]="hashcat -m 0 -a 3 --force --potfile-disable --quiet -n 1 -u 8 -T 1 81dc9bdb52d04dc20036dbd8313ed055 ?d?d?d?d"
)
declare -A varies=([clpeak]='s/: .*//' [clinfo]='/VERSION\|EXTENSIONS\|SVM\|ICD\|SUFFIX\|COMMAND_BUFFER\|EXECUTION_CAPABILITIES/d; s/^\[[A-Z]*/[/; s/  */ /g'
    [blas]= [vienna]= [pyopencl]= [hashcat]=)
export LD_LIBRARY_PATH=$libraries:/usr/lib/x86_64-linux-gnu/blas:/usr/lib/x86_64-linux-gnu/lapack POCL_CACHE_DIR=$work/cache OCL_ICD_VENDORS=$pocl/vendors PYTHONPATH=/usr/lib/python3/dist-packages
socket=$work/server.sock
"$katydid" serve --driver soft --listen "unix:$socket" --listen tcp://127.0.0.1:19923 2>"$work/server.log" &
server=$!
trap 'kill $server' EXIT
until [ -S "$socket" ]; do sleep 0.1; kill -0 $server || exit 1; done

failed=0
# Times are of whichever way compiles first.
for name in "${@:-clinfo blas vienna pyopencl hashcat clpeak}"; do for program in $name; do
    for way in native shm tcp; do
        through=()
        [ $way = shm ] && through=("$katydid" run --server "unix:$socket" --)
        [ $way = tcp ] && through=("$katydid" run --server tcp://127.0.0.1:19923 --)
        started=$(date +%s%N)
        (cd "$work" && timeout 900 "${through[@]}" ${command[$program]}) >"$work/$program.$way" 2>"$work/$program.$way.err" </dev/null
        code=$?
        sed "${varies[$program]}" "$work/$program.$way" >"$work/$program.$way.same"
        verdict=equal
        [ $code = 0 ] && cmp -s "$work/$program.native.same" "$work/$program.$way.same" || { verdict=DIFFERS; failed=1; }
        echo "$program $way: status $code, $verdict, $((($(date +%s%N) - started) / 1000000)) ms, $(wc -l <"$work/$program.$way") lines"
    done
done; done
exit $failed
