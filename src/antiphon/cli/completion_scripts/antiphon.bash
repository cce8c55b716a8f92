# Completion of antiphon for bash (3.2 or newer), as written by: antiphon --show-completion bash

# Set REPLY to the words of key $1 in the table of cli/completion.py, which stands in place of the next mark.
# Exit status 1: there is no such key.
_antiphon_words() {
    case $1 in
@WORDS@
    *) REPLY= ; return 1 ;;
    esac
}

_antiphon() {
    local line=${COMP_LINE:0:COMP_POINT} current= shown
    local -a before
    read -r -a before <<< "$line"
    if [[ $line != *[[:space:]] ]]; then
        current=${before[${#before[@]} - 1]}
        unset "before[${#before[@]} - 1]"
    fi
    before=("${before[@]:1}")
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
    # readline replaces only what stands behind the last of its word breaks, such as a colon or an equals sign
    shown=${current##*[:=]}
    local cut=${current%"$shown"}
    COMPREPLY=($(compgen -W "$names" -- "$current"))
    COMPREPLY=("${COMPREPLY[@]#"$cut"}")
    if [[ -n $files ]]; then
        compopt -o filenames 2> /dev/null
        while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$current")
    fi
}

complete -F _antiphon antiphon
