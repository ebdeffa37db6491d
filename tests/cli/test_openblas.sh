#!/usr/bin/env bash
# OpenBLAS takes a CPU for one too weak: train starts over with better kernels, unless the user chose.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"

doctor() { # VARIABLE=VALUE...
  said=$(env -u OPENBLAS_CORETYPE -u CODA_OPENBLAS_TOOK -u OMP_WAIT_POLICY -u OMP_NUM_THREADS -u OPENBLAS_NUM_THREADS "$@" \
    ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0 "$TRAIN" --doctor 2>&1)
}
says() { check "$1" "it said: $said" grep -q "$2" <<<"$said"; }
says_not() { check "$1" "it said: $said" test -z "$(grep "$2" <<<"$said")"; }

doctor OPENBLAS_NUM_THREADS=3
says the_doctor_names_the_processor_and_why_so_many_threads '^processor  *[^ ].*; 3 threads, as OPENBLAS_NUM_THREADS asks$'
case $said in
*", AVX-512; "*) better=SkylakeX ;;
*", AVX2; "*) better=Haswell ;;
*) exit "$failed" ;; # OpenBLAS has nothing better
esac

doctor OPENBLAS_CORETYPE=Haswell
says_not nothing_is_said_of_kernels_that_are_good_enough '^----  cpu:'
# Where OMP_WAIT_POLICY is set, there is no other reason to start over.
stub=LD_PRELOAD=$PWD/build/release/tests/corename_stub.so
for policy in '' passive; do
  doctor "$stub" ${policy:+"OMP_WAIT_POLICY=$policy"}
  says "kernels_too_weak_are_mended${policy:+_where_threads_sleep_already}" "^cpu .*($better), fp32"
  says "and_the_doctor_tells${policy:+_it_there}" "^----  cpu: OpenBLAS .* took it for Prescott; mended: it runs $better's kernels$"
done

doctor "$stub" OPENBLAS_CORETYPE=Nehalem
says what_the_user_chose_stays '^cpu .*(Nehalem), fp32'
says and_the_doctor_says_what_it_costs \
  "^----  cpu: OpenBLAS runs Nehalem's kernels, as OPENBLAS_CORETYPE asks: .* with $better's; unset it$"

# A build without kernels for AVX-512 does not know that name.
doctor CODA_OPENBLAS_TOOK=Prescott OPENBLAS_CORETYPE=Prescott
says a_name_that_openblas_does_not_know_is_followed_by_an_older_one '^cpu .*(Haswell), fp32'
exit "$failed"
