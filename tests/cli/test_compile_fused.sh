#!/usr/bin/env bash
# A fused kernel that uses local memory fails the build, be it for spilled registers or for an array that has to lie
# there. A stand-in for nvcc says what CUDA 13's assembler said of such kernels.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
cat >"$folder/nvcc" <<'END'
#!/usr/bin/env bash
if [ "$1" = --version ]; then echo "Cuda compilation tools, release $RELEASE, V$RELEASE.1"; exit; fi
touch "${*: -1}"
cat >&2 <<SAID
ptxas info    : Compiling entry function '_Z12fused_kernelI4TileILi128ELi256EE16program_residualL5Major0EE' for 'sm_90a'
ptxas info    : Function properties for _Z12fused_kernelI4TileILi128ELi256EE16program_residualL5Major0EE
    $SAYS
ptxas info    : Used 168 registers, used 9 barriers
SAID
exit "$STATUS"
END
chmod +x "$folder/nvcc"

compile() { # RELEASE STATUS SAYS
  RELEASE=$1 STATUS=$2 SAYS=$3 scripts/compile_fused.sh "$folder/log" "$folder/nvcc" -c x.cu -o "$folder/x.o" \
    >"$folder/said" 2>&1
}
built() { compile "$@" && [ -e "$folder/x.o" ]; }
refused() { ! compile "$@" && [ ! -e "$folder/x.o" ]; }

clean='0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads'
stack='128 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads'
spill='0 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads'
check a_kernel_in_registers_is_built "$(cat "$folder/said" 2>&1)" built 13.0 0 "$clean"
check a_stack_frame_without_spills_is_refused "$(cat "$folder/said")" refused 13.0 0 "$stack"
check its_kernel_is_shown "$(cat "$folder/said")" grep -qE '^residual +90a +128x256 +168 +128 B' "$folder/said"
check spilled_registers_are_refused "$(cat "$folder/said")" refused 13.0 0 "$spill"
check another_compiler_is_only_reported "$(cat "$folder/said")" built 12.8 0 "$stack"
check and_that_is_said "$(cat "$folder/said")" grep -q 'a kernel uses local memory' "$folder/said"
rm -f "$folder/x.o"
compile 13.0 1 "$clean"
check an_error_of_the_compiler_ends_the_build "status $?" test $? = 1
exit $failed
