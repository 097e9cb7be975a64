# fish completion of vioswitchctl: the program itself knows what may stand next.
function __vioswitchctl_words
    set -l words (commandline -opc)
    vioswitchctl complete -- $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c vioswitchctl -f -a '(__vioswitchctl_words)'
