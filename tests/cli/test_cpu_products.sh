#!/usr/bin/env bash
# backend.cpu_products as a user meets it: refused where bf16 is not available, chosen by auto where it pays, the same bits
# after an interruption. And what the script that installs packages says.
# shellcheck disable=SC2317 # functions are called through must
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_data 300
write_config "$folder/config.json"
options=("$folder/config.json" train.steps=12 train.save_interval=0)
products='products in bf16'

trains() { # RUN OVERRIDES...
  "$TRAIN" "${options[@]}" "output.dir=$folder/$1" "${@:2}" >"$folder/said" 2>&1 </dev/null
}
says() { check "$1" "it said: $(head -n 4 "$folder/said")" grep -q "$2" "$folder/said"; }
says_not() { check "$1" "it said: $(head -n 4 "$folder/said")" test -z "$(grep "$2" "$folder/said")"; }

# oneDNN believes this of the CPU.
believe() { export ONEDNN_MAX_CPU_ISA=$1 DNNL_MAX_CPU_ISA=$1; } # before 2.6 it is called so
believe AVX2
refuses bf16_is_refused_where_it_cannot_be_had 'backend.cpu_products=bf16 is not available (auto selects fp32): ' \
  "${options[@]}" backend.cpu_products=bf16
refuses a_plan_refuses_it_too 'backend.cpu_products=bf16 is not available' --plan "${options[@]}" backend.cpu_products=bf16
believe AVX512_CORE_BF16
trains slow backend.cpu_products=auto
says_not auto_is_fp32_where_bf16_does_not_pay "$products"
unset ONEDNN_MAX_CPU_ISA DNNL_MAX_CPU_ISA

OMP_NUM_THREADS=3 "$TRAIN" --doctor >"$folder/said" 2>&1
says the_doctor_names_the_processor_and_why_so_many_threads '^processor  *[^ ].*; 3 threads, as OMP_NUM_THREADS asks$'
says the_doctor_tells_of_them '^\(PASS\|----\)  cpu, products in bf16: '
if ! grep -q '^PASS  cpu, products in bf16' "$folder/said"; then
  echo "ok - runs with products in bf16 # SKIP $(grep '^----  cpu, products' "$folder/said")"
else
  must trains fp32
  says_not the_default_is_fp32 "$products"
  for run in auto bf16; do
    must trains $run backend.cpu_products=$run
    says "${run}_multiplies_in_bf16" "$products"
  done
  check auto_and_bf16_are_the_same 'their checkpoints differ' same_bits "$folder/auto" "$folder/bf16"
  must trains half backend.cpu_products=bf16 train.save_interval=5 train.keep_checkpoints=9
  mkdir "$folder/resumed" && cp -r "$folder/half/step-00000005" "$folder/resumed"
  must trains resumed backend.cpu_products=bf16 train.resume=auto
  check it_goes_on_after_the_fifth_step "$(cat "$folder/said")" test "$(grep -c '"kind":"train"' "$folder/resumed/log.jsonl")" = 7
  check a_resumed_run_ends_in_the_same_bits 'their checkpoints differ' same_bits "$folder/resumed" "$folder/bf16"
  check but_fp32_has_others 'fp32 and bf16 left the same weights' test -n \
    "$(cmp "$folder/fp32/latest/model.safetensors" "$folder/bf16/latest/model.safetensors" 2>&1)"
fi

# ---- scripts/install_packages.sh, with a compiler and an apt-get of ours
mkdir "$folder/bin"
cat >"$folder/bin/gcc" <<END
#!/bin/sh
case \$* in *dnnl*) [ "\$ONEDNN" = yes ] || exit 1 ;; esac
PATH='$PATH' exec gcc "\$@" # ccache, which may be this gcc, looks for the next one on the PATH
END
cat >"$folder/bin/apt-get" <<END
#!/bin/sh
echo "\$*" >>"$folder/apt-get.said"
echo 'E: Unable to locate package'
exit "\$APT_STATUS"
END
printf '#!/bin/sh\n[ "$1" != -n ] || shift\nexec "$@"\n' >"$folder/bin/sudo"
chmod +x "$folder"/bin/*
command() { [ "$2" != debootstrap ] && builtin command "$@"; } # is not there, even where it is
export -f command
installs() { # WHAT VARIABLES...
  env "PATH=$folder/bin:$PATH" "${@:2}" scripts/install_packages.sh "$1" >"$folder/said" 2>&1 </dev/null
}
installs build ONEDNN=no APT_STATUS=0
says the_script_installs_onednn '^packages: installing libdnnl-dev$'
check and_asks_apt_for_it "$(cat "$folder/apt-get.said")" grep -q ' install .* libdnnl-dev$' "$folder/apt-get.said"
says and_fails_where_it_did_not_come '^install_packages.sh: installed, but still not usable: oneDNN, built with OpenMP$'
must installs all ONEDNN=yes APT_STATUS=100
says what_tests_alone_call_may_be_missing "^packages: going without .*debootstrap.*: apt-get says 'E: Unable to locate package'"
exit "$failed"
