#compdef antiphon
# Completion of antiphon for zsh, as written by: antiphon --show-completion zsh

# Set REPLY to the words of key $1 in the table of cli/completion.py, which stands in place of the next mark.
# Exit status 1: there is no such key.
_antiphon_words() {
    case $1 in
@WORDS@
    *) REPLY= ; return 1 ;;
    esac
}

_antiphon() {
    local current=$PREFIX
    local -a before
    before=("${(@)words[2,CURRENT - 1]}")
    # Walk over the words before the current one: which command they name, how many arguments follow it, and whether
    # an option waits for its value. Then `kind` is what may stand here, `names` what is to be offered.
    local command= option= kind= names= files= ended= word REPLY
    local -i count=0
    for word in "${before[@]}"; do
        if [[ -n $option ]]; then
            option=
        elif [[ $word == -- ]]; then
            ended=1
        elif [[ $word == -* ]]; then
            if [[ $word != *=* ]] && _antiphon_words "value${command:+ $command} $word"; then option=$word; fi
        elif [[ -z $command && $word == help ]]; then
            continue
        elif (( count == 0 )) && _antiphon_words "options ${command:+$command }$word"; then
            command=${command:+$command }$word
        else
            count+=1
        fi
    done
    if [[ -n $ended ]]; then
        kind=@
    elif [[ -n $option ]]; then
        _antiphon_words "value${command:+ $command} $option"
        kind=$REPLY
    elif [[ $current == --*=* ]]; then
        _antiphon_words "value${command:+ $command} ${current%%=*}"
        kind=$REPLY
        current=${current#*=}
    elif [[ $current == -* ]]; then
        _antiphon_words "options${command:+ $command}"
        names=$REPLY
    else
        if (( count == 0 )) && _antiphon_words "commands${command:+ $command}"; then names=$REPLY; fi
        _antiphon_words "arguments $command"
        while (( count > 0 )) && [[ $REPLY == *' '* ]]; do
            REPLY=${REPLY#* }
            count+=-1
        done
        kind=${REPLY%% *}
    fi
    if [[ $kind == @* ]]; then files=1; fi
    if _antiphon_words "names ${kind#@}"; then names="$names $REPLY"; fi
    if [[ $PREFIX == --*=* ]]; then compset -P '*='; fi
    compadd -- ${=names}
    if [[ -n $files ]]; then _files; fi
}

if [[ $funcstack[1] == _antiphon ]]; then _antiphon "$@"; else compdef _antiphon antiphon; fi
