# Completion of antiphon for fish, as written by: antiphon --show-completion fish

# Print the words of a key (the arguments) in the table of cli/completion.py, which stands in place of the next mark.
# Exit status 1: there is no such key.
function __antiphon_words
    switch "$argv"
@WORDS@
        case '*'
            return 1
    end
end

function __antiphon_complete
    set -l before (commandline -opc)[2..-1]
    set -l current (commandline -ct)
    set -l command
    set -l option
    set -l ended
    set -l count 0
    # which command the words before name, how many arguments follow it, and whether an option waits for its value
    for word in $before
        if test -n "$option"
            set option
        else if test "$word" = --
            set ended 1
        else if string match -q -- '-*' $word
            if not string match -q -- '*=*' $word; and __antiphon_words value $command $word > /dev/null
                set option $word
            end
        else if test -z "$command" -a "$word" = help
            continue
        else if test $count -eq 0; and __antiphon_words options $command $word > /dev/null
            set command $command $word
        else
            set count (math $count + 1)
        end
    end
    set -l kind
    set -l start
    if test -n "$ended"
        set kind @
    else if test -n "$option"
        set kind (__antiphon_words value $command $option)
    else if string match -q -- '--*=*' $current
        set -l parts (string split -m 1 = -- $current)
        set kind (__antiphon_words value $command $parts[1])
        set start $parts[1]=
        set current $parts[2]
    else if string match -q -- '-*' $current
        string split ' ' -- (__antiphon_words options $command)
    else
        if test $count -eq 0
            string split ' ' -- (__antiphon_words commands $command)
        end
        set -l kinds (string split ' ' -- (__antiphon_words arguments $command))
        if test (count $kinds) -gt 0
            set kind $kinds[(math "min($count + 1, "(count $kinds)")")]
        end
    end
    if string match -q -- '@*' "$kind"
        __fish_complete_path $current | string replace -r -- '^' "$start"
    end
    string split ' ' -- (__antiphon_words names (string replace -r -- '^@' '' "$kind")) | string replace -r -- '^' "$start"
end

complete -c antiphon -f -a '(__antiphon_complete)'
