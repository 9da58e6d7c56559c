# flags: -X int_max_str_digits=700
print(len(str(10**600)))
print(len(str(10**900)))
