#!/bin/sh
# Installs the prover Dafny, on Debian and Ubuntu. The tests of internal/lib/rules prove the invariant with it, and compare the
# rules with the model of the proof.
set -eu
. "$(dirname "$0")/apt.sh"

if command -v dafny >/dev/null; then exit 0; fi

apt_install "The proof in internal/lib/rules/testdata/proof needs Dafny 2.3: install it (dafny on the PATH). Its tests are skipped until then." dafny
