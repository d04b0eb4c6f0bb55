# Runs in the sandbox: a command in the folder that setup.sh makes -> its exit code, the folder's files, its output.
mkdir work && cd work || exit 96
bash ../setup.sh > /dev/null 2>&1 || exit 97
bash ../command.sh > ../printed 2> /dev/null < /dev/null
echo "exit code $?"
find . -mindepth 1 -printf '%y %m %p %l\n' | LC_ALL=C sort
find . -type f -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum
echo "printed"
cat ../printed
