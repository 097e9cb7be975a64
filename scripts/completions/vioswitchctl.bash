# bash completion of vioswitchctl: the program itself knows what may stand next.
_vioswitchctl() {
    local IFS=$'\n'
    # shellcheck disable=SC2207
    COMPREPLY=($(vioswitchctl complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace
}
complete -o default -F _vioswitchctl vioswitchctl
