#!/usr/bin/env bash
# Runs ansible/site.yml on an inventory, once: again only when the playbooks, the inventory or the node changed.
#   setup/provision.sh INVENTORY [--force]     INVENTORY: local, lab, or a path to an inventory
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
inventory=${1:?usage: setup/provision.sh INVENTORY [--force]}
force=${2:-}
directory=ansible/inventories/$inventory
[ -e "$directory" ] || directory=$inventory
[ -e "$directory" ] || {
  echo "setup: FAILED: no inventory \"$inventory\": neither ansible/inventories/$inventory nor that path exists; there is: $(cd ansible/inventories && echo *)" >&2
  exit 1
}
directory=$(realpath "$directory")

stamp=var/.provisioned-$(basename "$directory")
wanted=$(find ansible "$directory" -type f -not -path '*/__pycache__/*' -not -path '*/.ansible/*' -print0 |
         sort -z | xargs -0 sha256sum | sha256sum)
# What a stamp cannot know: whether somebody removed the local node's servers since.
present() { [ "$inventory" != local ] || { [ -x .tools/mysql-5.6.24/bin/mysqld ] && compgen -G "var/mysql/empty-*" >/dev/null && [ -x /usr/bin/memcached ]; }; }

if [ "$force" != --force ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && present; then exit 0; fi
mkdir -p var .tools
exec 9> .tools/provision.lock
flock -w 900 9 || { echo "setup: FAILED: another provisioning has been running for 15 minutes" >&2; exit 1; }
echo "setup: provisioning inventory $inventory through Ansible" >&2
ANSIBLE_CONFIG=$PWD/ansible/ansible.cfg .venv/bin/ansible-playbook --inventory "$directory" ansible/site.yml
echo "$wanted" > "$stamp"
