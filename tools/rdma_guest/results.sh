# SPDX-License-Identifier: Apache-2.0

# shellcheck shell=bash
# Prints test results in the format of GoogleTest. Scripts of this folder source it and end with [ $num_failed = 0 ].
num_failed=0

milliseconds() { date +%s%3N; }

# begin_test NAME: starts a test and its clock.
begin_test() {
  test_name=$1 test_began=$(milliseconds)
  echo "[ RUN      ] $test_name"
}

# end_test STATUS [FILE...]: prints the result; 0 is success. After a failure it also prints the end of each file.
end_test() {
  local status=$1 verdict="[       OK ]"
  shift
  if [ "$status" != 0 ]; then
    [ $# = 0 ] || tail -n 5 "$@"
    verdict="[  FAILED  ]"
    num_failed=$((num_failed + 1))
  fi
  echo "$verdict $test_name ($(($(milliseconds) - test_began)) ms)"
}
