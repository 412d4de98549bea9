# shellcheck shell=bash
# Results of tests in GoogleTest's form, for the scripts of this folder: source it, and end with [ $num_failed = 0 ].
num_failed=0

milliseconds() { date +%s%3N; }

# begin_test NAME
begin_test() {
  test_name=$1 test_began=$(milliseconds)
  echo "[ RUN      ] $test_name"
}

# end_test STATUS [FILE...]: 0 is success; otherwise shows the last lines of the files.
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
